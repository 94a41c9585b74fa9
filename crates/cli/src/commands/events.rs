//! `stockade events`: every record of the journal from now on, one on each line.

use stockade_core::Result;

use super::audit;
use crate::terminal::printer::Printer;

/// Prints every record from now on.
pub fn events(printer: &Printer) -> Result<i32> {
    audit::follow::print_records(&audit::open_journal(printer)?, printer)
}
