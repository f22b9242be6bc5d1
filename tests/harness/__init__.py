"""Programs that inject faults and measure what comes of them; some tests use their parts."""
