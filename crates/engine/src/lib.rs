//! The one pipeline: tenants, selection, execution, output, leases, audit journal.
