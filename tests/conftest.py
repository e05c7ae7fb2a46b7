def pytest_collection_modifyitems(items):
    """Fast tests first: those that start engines take minutes."""
    items.sort(key=lambda item: item.get_closest_marker("engine") is not None)
