"""Which single integer or boolean of the inputs decides whether a case fails."""
