"""This project's own program: `python train.py experiment=leaves`, as `penstock train` would."""

import components  # noqa: F401 - registers this project's components

from penstock import train

if __name__ == "__main__":
    train()
