"""Reports: pages and figures of a run, a comparison, a diagnosis and a replay."""
