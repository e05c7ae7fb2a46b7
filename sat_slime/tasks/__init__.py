"""What a run of the lab trains on."""
