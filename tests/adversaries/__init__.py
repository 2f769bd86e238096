"""What attacks a study: clients and servers that lie, damage to records, kills.

Tests run them at a small size. Each module says which command runs it at full size.
"""
