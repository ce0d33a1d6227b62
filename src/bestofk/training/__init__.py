"""What stands around the loop in `training/train.py`."""
