//! Bounds that hold for each tenant, so that none takes what is there for all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use stockade_core::TenantName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// As many slots for each tenant.
#[derive(Debug)]
pub(crate) struct TenantSlots {
    max: usize,
    /// Of those who have taken one.
    by_tenant: Mutex<HashMap<TenantName, Arc<Semaphore>>>,
}

impl TenantSlots {
    /// This many slots for each tenant.
    pub(crate) fn new(max: usize) -> Self {
        Self { max, by_tenant: Mutex::default() }
    }

    /// Takes one; none where the tenant has taken all of its own.
    pub(crate) fn take(&self, tenant: &TenantName) -> Option<OwnedSemaphorePermit> {
        let mut all = self.by_tenant.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains_key(tenant) {
            // Tenants come and go, and those who have taken none are as good as unknown.
            all.retain(|_, slots| slots.available_permits() < self.max);
        }
        let slots = all.entry(tenant.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.max)));
        Arc::clone(slots).try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_takes_its_own_slots_and_no_more() {
        let (one, other) = ("one".parse().unwrap(), "other".parse().unwrap());
        let slots = TenantSlots::new(2);
        let taken = [slots.take(&one).unwrap(), slots.take(&one).unwrap()];
        assert!(slots.take(&one).is_none() && slots.take(&other).is_some());
        drop(taken);
        assert!(slots.take(&one).is_some());
    }

    #[test]
    fn tenants_that_have_none_are_forgotten_and_others_are_not() {
        let (slots, busy) = (TenantSlots::new(1), "busy".parse().unwrap());
        let _taken = slots.take(&busy).unwrap();
        for at in 0..100 {
            drop(slots.take(&format!("t{at}").parse().unwrap()).unwrap());
        }
        assert!(slots.by_tenant.lock().unwrap().len() <= 2);
        assert!(slots.take(&busy).is_none());
    }
}
