"""Label files beside the data: boxes, masks, keypoints, and what file names say."""
