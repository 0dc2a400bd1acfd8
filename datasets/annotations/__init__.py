"""What people say about records: labels, boxes, masks and keypoints from files of their own."""
