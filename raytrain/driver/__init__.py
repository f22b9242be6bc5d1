"""The process that plans a run, starts Ray and its workers, and watches them."""
