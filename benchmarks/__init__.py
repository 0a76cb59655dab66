"""What optilock costs and saves, one file per question; ``python -m benchmarks`` lists them."""
