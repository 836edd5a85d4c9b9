//! Minimum cut of a small network, by Dinic's algorithm.

pub(super) type Vertex = usize;

/// A capacity that no minimum cut contains.
pub(super) const UNCUTTABLE: i128 = i128::MAX / 4;

#[derive(Clone, Copy, Debug)]
struct Edge {
    to: u32,
    residual: i128,
}

/// A network with residual capacities. Edges come in pairs: `e` and its reverse `e ^ 1`.
#[derive(Clone, Debug)]
pub(super) struct Network {
    edges: Vec<Edge>,
    from: Vec<Vec<u32>>,
    level: Vec<u32>,
    next: Vec<usize>,
    /// Edges of the path that [`Network::send`] follows.
    path: Vec<u32>,
}

const UNREACHED: u32 = u32::MAX;

impl Network {
    pub fn new(vertices: usize) -> Self {
        Self {
            edges: Vec::new(),
            from: vec![Vec::new(); vertices],
            level: vec![UNREACHED; vertices],
            next: vec![0; vertices],
            path: Vec::new(),
        }
    }

    /// Adds an edge and returns its ordinal for [`Network::reset`].
    pub fn connect(&mut self, from: Vertex, to: Vertex, capacity: i128) -> usize {
        let edge = self.edges.len();
        self.from[from].push(edge as u32);
        self.from[to].push(edge as u32 + 1);
        self.edges.push(Edge {
            to: to as u32,
            residual: capacity,
        });
        self.edges.push(Edge {
            to: from as u32,
            residual: 0,
        });
        edge
    }

    /// Sets an edge's capacity and removes its flow. Required for every edge before the next cut.
    pub fn reset(&mut self, edge: usize, capacity: i128) {
        self.edges[edge].residual = capacity;
        self.edges[edge + 1].residual = 0;
    }

    /// Computes the maximum flow, and the minimum cut for [`Network::on_source_side`].
    pub fn max_flow(&mut self, source: Vertex, sink: Vertex) -> i128 {
        let mut flow = 0;
        while self.layer(source, sink) {
            self.next.fill(0);
            loop {
                let sent = self.send(source, sink);
                if sent == 0 {
                    break;
                }
                flow += sent;
            }
        }
        flow
    }

    /// True if a vertex is on the source's side of the smallest minimum cut.
    pub fn on_source_side(&self, vertex: Vertex) -> bool {
        self.level[vertex] != UNREACHED
    }

    fn layer(&mut self, source: Vertex, sink: Vertex) -> bool {
        self.level.fill(UNREACHED);
        self.level[source] = 0;
        let mut queue = vec![source];
        let mut at = 0;
        while let Some(&vertex) = queue.get(at) {
            at += 1;
            for &e in &self.from[vertex] {
                let edge = self.edges[e as usize];
                if edge.residual > 0 && self.level[edge.to as usize] == UNREACHED {
                    self.level[edge.to as usize] = self.level[vertex] + 1;
                    queue.push(edge.to as usize);
                }
            }
        }
        self.level[sink] != UNREACHED
    }

    /// Sends flow along one path of rising levels. Zero without such a path.
    fn send(&mut self, source: Vertex, sink: Vertex) -> i128 {
        self.path.clear();
        let mut at = source;
        while at != sink {
            let onward = self.from[at][self.next[at]..].iter().position(|&e| {
                let Edge { to, residual } = self.edges[e as usize];
                residual > 0 && self.level[to as usize] == self.level[at] + 1
            });
            if let Some(skipped) = onward {
                self.next[at] += skipped;
                let edge = self.from[at][self.next[at]];
                self.path.push(edge);
                at = self.edges[edge as usize].to as usize;
            } else {
                // A dead end: drop the edge that led here.
                self.next[at] = self.from[at].len();
                let Some(edge) = self.path.pop() else {
                    return 0;
                };
                at = self.edges[edge as usize ^ 1].to as usize;
                self.next[at] += 1;
            }
        }
        let sent = self
            .path
            .iter()
            .map(|&e| self.edges[e as usize].residual)
            .min()
            .unwrap_or(0);
        for &e in &self.path {
            self.edges[e as usize].residual -= sent;
            self.edges[e as usize ^ 1].residual += sent;
        }
        sent
    }
}

#[cfg(test)]
mod tests;
