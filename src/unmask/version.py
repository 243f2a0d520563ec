"""The version number; packaging, model folders and `--version` all read it from here."""

VERSION = "0.1.0"
