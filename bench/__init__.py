"""How fast this project trains and what it costs, beside its peers. Nothing in the product imports it."""
