"""Read label files beside the data: boxes, masks, keypoints, and fields in file names."""
