"""Where Hydra looks for launchers: a thin door to launch.py."""

from hydra.plugins.launcher import Launcher


class LocalLauncher(Launcher):
    """hydra/launcher=local: one child process per run, side by side on this machine."""

    def __init__(self, jobs: int | None = None, dry: bool = False):
        self.jobs, self.dry = jobs, dry

    def setup(self, *, hydra_context, task_function, config) -> None:
        self.loader, self.config = hydra_context.config_loader, config

    def launch(self, job_overrides, initial_job_idx):
        from engine import launch

        composed = [self.loader.load_sweep_config(self.config, list(overrides)) for overrides in job_overrides]
        declared = self.config.hydra.sweeper.params or {}
        raise SystemExit(launch.sweep(composed, job_overrides, declared, width=self.jobs, dry=self.dry))
