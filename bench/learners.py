"""Who trains: this project and its peers, each as a function that does one training step on one batch.

A peer keeps its own model, and nanoGPT its own optimizer and its way of drawing batches. Nothing of a peer is copied.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import nn

import gpt
from bench.nanogpt import model_module
from config import Config, ModelConfig
from text.corpus import Corpus
from training import optim
from training.learner import Learner
from training.machine import Machine
from training.packed import Pack

Step = Callable[[], object]


@dataclass(frozen=True)
class Task:
    config: Config
    machine: Machine
    text: Corpus
    peer: Path | None  # checkout of nanoGPT


def ours(task: Task) -> Step:
    """One seed, or as many as machine.pack says, as one stacked model."""
    seeds = task.config.machine.pack or 1
    configs = [replace(task.config, seed=seed) for seed in range(seeds)]
    learner = (Learner if seeds == 1 else Pack)(configs, task.machine, task.text)
    numbers = count()
    return lambda: learner.update(next(numbers))


def nanogpt(task: Task) -> Step:
    """As its train.py does it, less the print of each step's loss, which would wait for the device."""
    module = model_module(task.peer)
    c, t = task.config.model, task.config.train
    sizes = {"block_size": c.context, "n_layer": c.n_layer, "n_head": c.n_head, "n_embd": c.d_model}
    config = module.GPTConfig(**sizes, vocab_size=task.text.vocab_size, dropout=c.dropout, bias=False)
    model = module.GPT(config).to(task.machine.device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    optimizer = model.configure_optimizers(t.weight_decay, t.lr, (t.beta1, t.beta2), task.machine.device.type)
    return stepper(task, model, optimizer, lambda forward, x, y: forward(x, y)[1])


def llama(task: Task) -> Step:
    """The baseline block by `transformers`: SwiGLU, RMSNorm, RoPE, tied embeddings, random weights."""
    from transformers import LlamaForCausalLM

    config = llama_config(task.config.model, task.text.vocab_size)
    model = LlamaForCausalLM(config).to(task.machine.device).train()
    optimizer = optim.adamw(model, task.config.train)
    return stepper(task, model, optimizer, lambda forward, x, y: gpt.loss(forward(input_ids=x).logits, y))


def llama_config(c: ModelConfig, vocab_size: int):
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=c.d_model,
        intermediate_size=round(8 * c.d_model / 3),
        num_hidden_layers=c.n_layer,
        num_attention_heads=c.n_head,
        max_position_embeddings=c.context,
        attention_dropout=c.dropout,
        rms_norm_eps=c.norm_eps,
        tie_word_embeddings=True,
        use_cache=False,
    )


def x_transformers(task: Task) -> Step:
    """The baseline block by `x-transformers`."""
    from x_transformers import Decoder, TransformerWrapper

    c = task.config.model
    decoder = Decoder(
        dim=c.d_model,
        depth=c.n_layer,
        heads=c.n_head,
        attn_dim_head=c.head_size,
        attn_dropout=c.dropout,
        attn_flash=True,
        ff_mult=round(8 * c.d_model / 3) / c.d_model,
        ff_glu=True,
        ff_swish=True,
        ff_no_bias=True,
        ff_dropout=c.dropout,
        use_rmsnorm=True,
        rotary_pos_emb=True,
    )
    shell = {"max_seq_len": c.context, "use_abs_pos_emb": False, "tie_embedding": True, "emb_dropout": c.dropout}
    model = TransformerWrapper(num_tokens=task.text.vocab_size, attn_layers=decoder, **shell).to(task.machine.device)
    optimizer = optim.adamw(model, task.config.train)
    return stepper(task, model, optimizer, lambda forward, x, y: gpt.loss(forward(x), y))


def stepper(task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Callable) -> Step:
    """Forward, backward, clip, update: a peer's step. `loss_of(forward, inputs, targets)` is a scalar."""
    machine, t = task.machine, task.config.train
    forward = torch.compile(model) if machine.compile else model
    symbols = task.text.train.numpy().astype(np.uint16)

    def step() -> None:
        x, y = batch(symbols, t.batch_size, task.config.model.context, machine.device)
        with machine.autocast():
            loss = loss_of(forward, x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), t.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def batch(symbols: np.ndarray, batch_size: int, context: int, device: torch.device) -> list[torch.Tensor]:
    """Inputs and targets (B, T) out of an array on disk or in memory, row by row, as nanoGPT draws them."""
    starts = torch.randint(len(symbols) - context, (batch_size,)).tolist()
    halves = [
        torch.stack([torch.from_numpy(symbols[i + shift : i + shift + context].astype(np.int64)) for i in starts])
        for shift in (0, 1)
    ]
    if device.type == "cpu":
        return halves
    return [half.pin_memory().to(device, non_blocking=True) for half in halves]


BUILDERS = {"ours": ours, "nanogpt": nanogpt, "llama": llama, "x_transformers": x_transformers}
