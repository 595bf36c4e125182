"""What a cluster is: its model, names, folders and limits, which all sides share."""
