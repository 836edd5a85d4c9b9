# First process of a node, in PID, network, mount, UTS and cgroup namespaces of its own. Arguments: the folder with
# the node's files, the folder with its programs, its name, its address.
folder=$1 programs=$2 name=$3 address=$4
sh "$(dirname "$0")/hierarchies.sh"
hostname "$name"
mkdir -p "$folder/run" "$folder/lib/kubelet/pods" "$folder/log" "$folder/kernel"
for own in run:/run lib:/var/lib log:/var/log; do mount --bind "$folder/${own%%:*}" "${own#*:}"; done
# The boot ID is new. The kubelet writes the other settings, which belong to the whole machine.
for file in random/boot_id overcommit_memory panic panic_on_oops keys/root_maxkeys keys/root_maxbytes; do
  file=$(ls /proc/sys/kernel/$file /proc/sys/vm/$file 2>/dev/null)
  cat "$file" >"$folder/kernel/${file##*/}"
  [ "${file##*/}" != boot_id ] || cat /proc/sys/kernel/random/uuid >"$folder/kernel/boot_id"
  mount --bind "$folder/kernel/${file##*/}" "$file"
done
mount --make-rshared /

# The bridge of the pods has the node's address; without a fixed one its hardware address changes with its ports.
until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
ip link set lo up
ip link add name cni0 address "02:00:00:00:00:$(printf %02x "${address##*.}")" type bridge
ip link set eth0 up master cni0
ip address add "$address/16" dev cni0
ip link set cni0 up
ip route add default via 10.77.0.1

# Runs a program again when it ends, unless its file of this name says otherwise.
keep() {
  while :; do
    [ -e "$folder/no-$1" ] || PATH=$programs:$PATH "$programs/$@" >>"$folder/$1.log" 2>&1
    sleep 0.5
  done
}
keep containerd --config "$folder/containerd.toml" &
keep kubelet --config "$folder/kubelet.json" --kubeconfig "$folder/kubeconfig" --node-ip "$address" &
wait
