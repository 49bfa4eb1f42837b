"""Where Hydra looks for launchers: a thin door to launch.py."""

from hydra.plugins.launcher import Launcher
from omegaconf import OmegaConf


class Sweep(Launcher):
    """hydra/launcher=local|slurm|ray: the same sweep, its jobs handed to the engine of that name."""

    def __init__(self, engine: str, dry: bool, **options):
        self.engine, self.dry, self.options = engine, dry, options

    def setup(self, *, hydra_context, task_function, config) -> None:
        self.loader, self.config = hydra_context.config_loader, config

    def launch(self, job_overrides, initial_job_idx):
        from engine import launch

        def compose(overrides):
            return self.loader.load_sweep_config(self.config, list(overrides))

        declared = self.config.hydra.sweeper.params or {}
        options = OmegaConf.to_container(OmegaConf.create(self.options))
        raise SystemExit(launch.sweep(compose, job_overrides, declared, self.engine, options, dry=self.dry))
