"""Memory that processes share, and its descriptor."""

import os
import pickle

from datasets.shared_area import SharedArea


def _inode(descriptor):
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return None


def test_the_descriptor_of_an_area_is_given_back_with_it():
    area = SharedArea(9)
    again = pickle.loads(pickle.dumps(area))
    descriptor = area.descriptor
    inode = _inode(descriptor)
    assert inode is not None
    del area
    assert _inode(descriptor) == inode, "it is in use"
    del again
    assert _inode(descriptor) != inode
