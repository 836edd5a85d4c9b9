//! Persistent records of an agent: the attempt that each container is released for.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use lockstep_node::Records;
use thiserror::Error;
use tokio::fs;
use tokio::io::AsyncWriteExt;

pub trait Store: Send {
    fn load(&self) -> impl Future<Output = Result<Option<Records>, StoreError>> + Send;

    /// Replaces the saved records durably.
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

/// One file in the agent's state folder. It is replaced by a rename, so a crash leaves the old or
/// the new version.
#[derive(Clone, Debug)]
pub struct FileStore {
    folder: PathBuf,
}

impl FileStore {
    /// The first write creates the folder.
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.join("records.json")
    }

    async fn write(&self, text: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.folder).await?;
        let new = self.folder.join("records.json.new");
        let mut file = fs::File::create(&new).await?;
        file.write_all(text).await?;
        file.sync_all().await?;
        fs::rename(&new, self.path()).await?;
        // The rename is durable only after a sync of the folder.
        fs::File::open(&self.folder).await?.sync_all().await
    }
}

impl Store for FileStore {
    async fn load(&self) -> Result<Option<Records>, StoreError> {
        let path = self.path();
        match fs::read(&path).await {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|source| StoreError::Damaged { path, source }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StoreError::Io { path, source }),
        }
    }

    async fn save(&self, records: &Records) -> Result<(), StoreError> {
        let text = serde_json::to_vec(records).map_err(|source| StoreError::Damaged {
            path: self.path(),
            source,
        })?;
        self.write(&text).await.map_err(|source| StoreError::Io {
            path: self.path(),
            source,
        })
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
