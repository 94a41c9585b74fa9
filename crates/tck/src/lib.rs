//! The conformance kit: cases, probe program, control, saboteurs, report.
