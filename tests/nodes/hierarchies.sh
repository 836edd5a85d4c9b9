# Shows each hierarchy of cgroups from the root of this cgroup namespace.
awk '$3 ~ /^cgroup/ {print $2, $3, $4}' /proc/self/mounts | while read -r folder type options; do
  # The names of the controllers; without them the mount would be another hierarchy.
  options=$(printf '%s' "$options" | sed -E 's/^(rw|ro)|,(nosuid|nodev|noexec|relatime|nsdelegate|memory_recursiveprot)\b//g; s/^,//; s/^name=/none,name=/')
  umount "$folder"
  mount -t "$type" ${options:+-o "$options"} cgroup "$folder"
done
