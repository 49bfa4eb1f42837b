"""Published models as settings of the one gpt.py: weights of the Hugging Face classes loaded into it, proven equal.

from_hf(model) and load(folder) give a GPT; check(model, ids) says by how much the two differ;
`python -m families check PATH` does it for a checkpoint on disk.
"""

from families.checking import check
from families.weights import from_hf, load

__all__ = ["check", "from_hf", "load"]
