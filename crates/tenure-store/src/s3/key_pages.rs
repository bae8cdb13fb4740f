//! Pages of keys without their values, and removals without a trace: for indexes, which may be long.

use std::sync::Arc;

use super::S3Store;
use super::kv::AT_ONCE;
use super::object_format::DELETED_LENGTH;
use super::requests::PageStart;
use crate::concurrent_batch::in_waves;
use crate::error::StoreError;
use crate::store::KeyPage;

impl S3Store {
    /// One request where the page is short and the service lists objects in the order of their names, which is that of the keys.
    ///
    /// Services that keep folders list a folder before what only begins like it. There, as soon as a page has folders within or begins
    /// behind one, everything is read and put in order here.
    pub(super) async fn page_of_keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<KeyPage, StoreError> {
        let after = after.filter(|after| *after >= prefix);
        if limit == 0 || after.is_some_and(|after| !after.starts_with(prefix)) {
            return Ok(KeyPage::default());
        }
        let ordered = self.client.site.manners.is_ordered();
        let (objects, most) = (self.names.prefix(prefix), limit.saturating_add(2));
        let folder = prefix.rfind('/').map_or(0, |slash| slash + 1);
        let mut folders = false;
        let mut from = PageStart::Start;
        if let Some(after) = after {
            let within = self.names.prefix(&format!("{after}/"));
            if !ordered {
                let page = self.client.page(&within, &PageStart::Start, 1).await?;
                folders = !page.objects.is_empty();
            }
            if !folders {
                // Whatever begins with this key comes after it, itself included.
                from = PageStart::After(self.names.prefix(after));
            }
        }
        let (mut keys, mut old) = (Vec::new(), Vec::new());
        loop {
            let page = self.client.page(&objects, &from, most).await?;
            for object in page.objects {
                let Some(key) = self.names.key(&object.key) else {
                    continue;
                };
                if object.size == DELETED_LENGTH
                    && self.is_old_and_alone(&object.last_modified, page.date)
                {
                    old.push((object.key, Arc::from(&*object.etag)));
                }
                let fits = key.starts_with(prefix) && after.is_none_or(|after| &*key > after);
                let is_within = key.get(folder..).is_some_and(|rest| rest.contains('/'));
                folders |= is_within && !ordered;
                if fits && object.size != DELETED_LENGTH {
                    keys.push(key);
                }
            }
            match page.next {
                Some(token) if folders || keys.len() <= limit => from = PageStart::Token(token),
                _ => break,
            }
        }
        self.collect(old);
        keys.sort_unstable();
        Ok(KeyPage::page(keys.into_iter(), limit))
    }

    pub(super) async fn discard_all(&self, keys: Vec<String>) -> Vec<Result<(), StoreError>> {
        let ask = |key: String| async move {
            let object = self.names.object(&key)?;
            self.client.remove(&object, None).await.map(drop)
        };
        in_waves(AT_ONCE, keys, |key| key, ask).await
    }
}
