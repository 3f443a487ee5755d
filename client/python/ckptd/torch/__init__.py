"""Adapters for what torch itself brings. Import the one you use: `import ckptd.torch.dcp`."""
