"""From finished runs to claims, one way: runs -> stats -> tables, plots -> report."""
