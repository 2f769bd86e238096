"""Settings of all tests."""

from hypothesis import settings

# A slow machine is no failure: speed is measured in benchmarks/, not in tests.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
