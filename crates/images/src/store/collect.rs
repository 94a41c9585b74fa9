//! Removing: names, images, and whatever belongs to no image. What a sandbox uses stays.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use stockade_fs::{Directory, Sharing, Timestamp};

use super::locks::{STORE_LOCK, remove_unheld, try_lock};
use super::records::{ImageRecord, NameRecord, image_file, last_use, name_file, read_records};
use super::{Found, ImageStore};
use crate::{Digest, ImageError, PruneOptions, Removed};

impl ImageStore {
    pub(super) fn remove_found(&self, found: Found) -> Result<Removed, ImageError> {
        let names: Vec<NameRecord> = read_records(&self.names)?;
        let names = names.into_iter().filter(|name| name.manifest == found.record.manifest);
        let (doomed, others): (Vec<_>, Vec<_>) = names.partition(|name| {
            found.reference.as_ref().is_none_or(|reference| *reference == name.reference)
        });
        let mut removed = Removed::default();
        if others.is_empty() {
            let shown = found.reference.as_ref().map(|reference| reference.familiar());
            let shown = shown.unwrap_or_else(|| found.record.manifest.to_string());
            if !self.remove_image(&found.record, &doomed)? {
                return Err(ImageError::InUse(shown));
            }
            removed.images.push(shown);
        } else {
            for name in doomed {
                self.remove_record(&self.names, &name_file(&name.reference))?;
                removed.names.push(name.reference.familiar());
            }
        }
        removed.bytes = self.collect_garbage(false)?;
        Ok(removed)
    }

    /// Removes an image and its names unless a sandbox uses it: then false.
    fn remove_image(&self, record: &ImageRecord, names: &[NameRecord]) -> Result<bool, ImageError> {
        let others: Vec<ImageRecord> = read_records(&self.images)?;
        let shares =
            |other: &ImageRecord| other.tree == record.tree && other.manifest != record.manifest;
        // A tree that another image has too stays, whoever uses it.
        if !others.iter().any(shares) && !self.remove_tree_unless_used(&record.tree)? {
            return Ok(false);
        }
        for name in names {
            self.remove_record(&self.names, &name_file(&name.reference))?;
        }
        self.remove_record(&self.images, &image_file(&record.manifest))?;
        self.remove_record(&self.used, &record.manifest.hex())?;
        Ok(true)
    }

    fn remove_record(&self, directory: &Directory, file: &str) -> Result<(), ImageError> {
        directory.remove(file).map_err(ImageError::io("removed", directory.path_of(file)))
    }

    pub(super) fn prune_images(&self, options: &PruneOptions) -> Result<Removed, ImageError> {
        let names: Vec<NameRecord> = read_records(&self.names)?;
        let mut removed = Removed::default();
        for record in read_records::<ImageRecord>(&self.images)? {
            let names = names.iter().filter(|name| name.manifest == record.manifest);
            let names: Vec<NameRecord> = names.cloned().collect();
            let last = last_use(&self.used, &record.manifest).unwrap_or(record.stored);
            let unused =
                options.unused_for.is_none_or(|least| age_of(last.max(record.stored)) >= least);
            if !unused || (!names.is_empty() && !options.all) {
                continue;
            }
            let shown = names.first().map(|name| name.reference.familiar());
            let shown = shown.unwrap_or_else(|| record.manifest.to_string());
            match self.remove_image(&record, &names)? {
                true => removed.images.push(shown),
                false => removed.in_use.push(shown),
            }
        }
        removed.bytes = self.collect_garbage(true)?;
        Ok(removed)
    }

    /// Removes blobs, trees and drafts of no image, and partial downloads where `partial` says so. Does nothing
    /// while a pull goes on: it counts on blobs that no image names yet. Answers with the bytes of the blobs.
    fn collect_garbage(&self, partial: bool) -> Result<u64, ImageError> {
        let Some(_lock) = try_lock(&self.locks, STORE_LOCK, Sharing::Exclusive)? else {
            return Ok(0);
        };
        let records: Vec<ImageRecord> = read_records(&self.images)?;
        let mut blobs: HashSet<String> =
            records.iter().flat_map(ImageRecord::blobs).map(Digest::hex).collect();
        match partial {
            true => self.forget_builds()?,
            false => blobs.extend(self.build_blobs()?),
        }
        let trees: HashSet<String> = records.iter().map(|record| record.tree.hex()).collect();
        let mut bytes = self.remove_unlisted(&self.blobs, &blobs)?;
        if partial {
            bytes += self.remove_unlisted(&self.partial, &HashSet::new())?;
        }
        for name in self.trees.names().map_err(ImageError::io("listed", self.trees.path()))? {
            if let Ok(tree) = Digest::from_hex(&name)
                && !trees.contains(&name)
            {
                self.remove_tree_unless_used(&tree)?;
            }
        }
        self.remove_stale_drafts()?;
        remove_unheld(&self.locks)?;
        Ok(bytes)
    }

    fn remove_unlisted(
        &self,
        directory: &Directory,
        kept: &HashSet<String>,
    ) -> Result<u64, ImageError> {
        let mut bytes = 0;
        for name in directory.names().map_err(ImageError::io("listed", directory.path()))? {
            if matches!(name.as_str(), "." | "..") || kept.contains(&name) {
                continue;
            }
            let path = directory.path_of(&name);
            bytes += std::fs::symlink_metadata(&path).map_or(0, |metadata| metadata.len());
            self.remove_record(directory, &name)?;
        }
        Ok(bytes)
    }

    /// Removes these blobs where no image has them, for an image that was refused. Left to `prune` while another
    /// pull goes on.
    pub(crate) fn discard_blobs(&self, blobs: &[Digest]) {
        let Ok(Some(_lock)) = try_lock(&self.locks, STORE_LOCK, Sharing::Exclusive) else { return };
        let records: Result<Vec<ImageRecord>, _> = read_records(&self.images);
        let Ok(records) = records else { return };
        let kept: HashSet<&Digest> = records.iter().flat_map(ImageRecord::blobs).collect();
        for blob in blobs.iter().filter(|blob| !kept.contains(blob)) {
            let _ = self.blobs.remove(&blob.hex());
            let _ = self.partial.remove(&blob.hex());
        }
    }
}

fn age_of(time: Timestamp) -> Duration {
    SystemTime::now().duration_since(time.into()).unwrap_or_default()
}
