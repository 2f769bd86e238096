"""What may leave the server: releases, their noise and their accounting."""
