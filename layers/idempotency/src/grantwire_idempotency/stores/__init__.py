"""Where keys are kept; see `interface` for what a store promises."""
