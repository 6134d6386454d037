"""What the scripts of benchmarks/ share. Nothing here is run by a user: benchmarks/README.md lists the scripts."""
