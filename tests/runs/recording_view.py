class RecordingView:
    """A view that keeps the calls it was given."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args: self.calls.append((name, *args))
