//! Persistent records of an agent: the attempt that each container is released for.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use lockstep_node::Records;
use thiserror::Error;
use tokio::fs;

pub trait Store: Send {
    fn load(&self) -> impl Future<Output = Result<Option<Records>, StoreError>> + Send;

    /// Replaces the saved records.
    fn save(&self, records: &Records) -> impl Future<Output = Result<(), StoreError>> + Send;
}

#[derive(Debug, Error)]
pub enum StoreError {
    #[error("cannot keep records in {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("records in {} are damaged", path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

const FILE: &str = "records.json";

/// One file in the agent's state folder. It is replaced by a rename, so an agent that crashes leaves
/// the old or the new version. The records describe containers, which do not survive a boot of the
/// node either. So the folder is in memory: writes need no sync, and work on a node whose disk is
/// full.
#[derive(Clone, Debug)]
pub struct FileStore {
    folder: PathBuf,
    /// Folder of versions that kept the records on disk.
    former: Option<PathBuf>,
}

impl FileStore {
    /// The first write creates the folder. Records in `former` are moved to it once, after an
    /// upgrade.
    pub fn new(folder: &Path, former: Option<&Path>) -> Self {
        Self {
            folder: folder.to_owned(),
            former: former.map(Path::to_owned),
        }
    }

    async fn read(folder: &Path) -> Result<Option<Records>, StoreError> {
        let path = folder.join(FILE);
        match fs::read(&path).await {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|source| StoreError::Damaged { path, source }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StoreError::Io { path, source }),
        }
    }

    async fn write(&self, text: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.folder).await?;
        let new = self.folder.join("records.json.new");
        fs::write(&new, text).await?;
        fs::rename(&new, self.folder.join(FILE)).await
    }
}

impl Store for FileStore {
    async fn load(&self) -> Result<Option<Records>, StoreError> {
        let records = Self::read(&self.folder).await?;
        let Some(former) = self.former.as_ref().filter(|_| records.is_none()) else {
            return Ok(records);
        };
        let records = Self::read(former).await?;
        if let Some(records) = &records {
            self.save(records).await?;
            let path = former.join(FILE);
            let removed = fs::remove_file(&path).await;
            removed.map_err(|source| StoreError::Io { path, source })?;
        }
        Ok(records)
    }

    async fn save(&self, records: &Records) -> Result<(), StoreError> {
        let path = self.folder.join(FILE);
        let text = serde_json::to_vec(records);
        let text = text.map_err(|source| StoreError::Damaged {
            path: path.clone(),
            source,
        })?;
        let written = self.write(&text).await;
        written.map_err(|source| StoreError::Io { path, source })
    }
}

/// In-memory storage that outlives the agent of a simulated node.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Mutex<Option<Records>>>);

impl Store for MemoryStore {
    async fn load(&self) -> Result<Option<Records>, StoreError> {
        Ok(self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone())
    }

    async fn save(&self, records: &Records) -> Result<(), StoreError> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(records.clone());
        Ok(())
    }
}
