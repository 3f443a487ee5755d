"""How ckptd's costs grow: ckptd-bench over series of sizes, each point beside its limit of the same run."""
