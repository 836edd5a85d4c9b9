# Ends the containers of a containerd that is gone, and removes what they have outside of its folder: mounts,
# cgroups, sockets of shims.
bundles=$folder/state/io.containerd.runtime.v2.task

# A shim names the socket in its arguments. One that is killed leaves its containers behind, so they go first.
pids=
for file in $(printf '%s\n' "$socket" | grep -lzxFf - /proc/[0-9]*/cmdline 2>/dev/null); do
  pid=${file#/proc/}
  pid=${pid%/cmdline}
  pids="$pids $(cat /proc/"$pid"/task/*/children 2>/dev/null) $pid"
done
[ -z "$pids" ] || kill -9 $pids 2>/dev/null

# On its node, which is the folder around its own.
cut -d ' ' -f 2 /proc/self/mounts | grep "^${folder%/*}/" | sort -r | while read -r mount; do
  umount -l "$mount"
done

for bundle in "$bundles"/*/*; do
  [ -f "$bundle/address" ] || continue
  id=${bundle##*/}
  read -r address <"$bundle/address" || true
  rm -rf "${address#unix://}"
  # A cgroup can be removed once its last process is gone.
  for try in $(seq 100); do
    cgroups=$(find /sys/fs/cgroup -depth -type d -path "*/$id*")
    [ -z "$cgroups" ] || rmdir $cgroups 2>/dev/null || { sleep 0.05; continue; }
    break
  done
done
rm -f "$0"
