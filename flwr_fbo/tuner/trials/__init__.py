"""One trial: the app's `main` in a thread of its own, with a Grid of its own."""
