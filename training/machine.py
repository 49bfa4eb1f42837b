"""What the machine can do: device, precision, threads, and how much memory a run took."""

import os
import resource
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

from config import MachineConfig, Precision, UserError
from storage.files import first_line


@dataclass(frozen=True)
class Machine:
    """The settings of MachineConfig with every `auto` decided."""

    device: torch.device
    precision: Precision  # fp32 or bf16
    threads: int
    compile: bool

    def autocast(self):
        """bf16 matrix products where the precision says so; sums, norms and the loss stay float32."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision is Precision.bf16)

    def compiled(self, call: Callable) -> Callable:
        """Under torch.compile where asked for; on a GPU as a CUDA graph, which costs one launch and not hundreds."""
        if not self.compile:
            return call
        return torch.compile(call, mode="reduce-overhead" if self.device.type == "cuda" else None)

    def wait(self) -> None:
        """Until the device has done its work, so that a clock tells the truth."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def peak_mb(self) -> float:
        """Largest memory so far, in MB: of the device on a GPU, of the process on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 1e6
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6

    def facts(self) -> dict:
        """For the record: numbers that differ in one of these are not put into one mean."""
        gpu = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else ""
        return {
            "device": self.device.type,
            "device_name": gpu,
            "precision": self.precision.value,
            "threads": self.threads,
            "compile": self.compile,
        }


def settle(c: MachineConfig) -> Machine:
    """Decide every `auto` and set the number of threads.

    Raises UserError for a device that is not there or a precision that fails on it.
    """
    torch.set_num_threads(c.threads)
    try:
        device = torch.device(c.device if c.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
        precision = c.precision
        if precision is Precision.auto:
            precision = Precision.bf16 if has_bf16(device) else Precision.fp32
        machine = Machine(device, precision, c.threads, c.compile)
        with machine.autocast():
            torch.ones(2, 2, device=device) @ torch.ones(2, 2, device=device)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        asked = f"machine.device={c.device}, machine.precision={c.precision.value}"
        raise UserError(f"{asked}: {first_line(error)}. Allowed devices: auto, cpu, cuda, cuda:N") from None
    if c.compile and device.type == "cpu" and not shutil.which(os.environ.get("CXX", "g++")):
        raise UserError("machine.compile=true needs a C++ compiler (g++, or the one that CXX names): none is here")
    return machine


def frozen_precision(c: MachineConfig) -> Precision:
    """What `auto` means on a CPU, so that a run keeps it wherever it goes on. A GPU is asked by the run alone."""
    cpu = c.device == "cpu" or (c.device == "auto" and not torch.cuda.is_available())
    if c.precision is not Precision.auto or not cpu:
        return c.precision
    return Precision.bf16 if has_bf16(torch.device("cpu")) else Precision.fp32


def has_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies in bf16. Elsewhere it is emulated, many times slower."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
