"""Why a case fails: where it is wrong, which change of inputs or outputs reproduces the result, which cases fail together."""
