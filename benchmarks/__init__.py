"""Side by side with other tools, in interleaved runs; results go to `benchmarks/results/`."""
