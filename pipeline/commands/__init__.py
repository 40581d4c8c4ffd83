"""The commands of `rayvec`: each module adds its parsers and holds what they call."""
