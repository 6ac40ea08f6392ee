"""From what people have on disk to samples: lines, whole inputs, folders of media."""
