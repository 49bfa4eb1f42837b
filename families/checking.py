"""Whether two implementations of one network say the same."""

import copy
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from families.weights import from_hf


def check(hf_model, ids: Tensor) -> float:
    """The largest absolute difference between the logits of a `transformers` model and those of `from_hf` of it.

    ids (B, T). In the model's own dtype. In float64 both keep all they compute in it, angles, norms and softmaxes
    too, which the classes otherwise round to float32: a difference is then one of formulas.
    """
    with torch.no_grad(), ExitStack() as stack:
        if hf_model.dtype == torch.float64:
            stack.enter_context(exact())
            hf_model = rebuilt(hf_model)
        return difference(hf_model.eval(), from_hf(hf_model).to(hf_model.device), ids)


def rebuilt(hf_model):
    """The same again: tables of angles were rounded when it was built, and fused kernels of experts know no float64."""
    fresh = type(hf_model)(copy.deepcopy(hf_model.config))
    fresh.set_experts_implementation("eager")
    fresh.load_state_dict(hf_model.state_dict())
    return fresh


def difference(hf_model, model, ids: Tensor) -> float:
    return (hf_model(ids).logits - model(ids)).abs().max().item()


def greedy(logits_of, ids: Tensor, n: int) -> Tensor:
    """The n most likely symbols behind ids (B, T), one after the other: (B, T + n)."""
    with torch.no_grad():
        for _ in range(n):
            ids = torch.cat([ids, logits_of(ids)[:, -1:].argmax(-1)], dim=1)
    return ids


@contextmanager
def exact():
    """Code inside computes in float64 wherever it asks for float32, or for nothing."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Doubled():
            yield
    finally:
        torch.set_default_dtype(usual)


class Doubled(TorchFunctionMode):
    """Float64 for each float32 that torch is asked for."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        func = torch.Tensor.double if func is torch.Tensor.float else func
        args = [double(value) for value in args]
        return func(*args, **{key: double(value) for key, value in (kwargs or {}).items()})


def double(value):
    return torch.float64 if value is torch.float32 else value
