// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//
// Counts new connections by the endpoint that they were given to, and packets to NodePorts
// on loopback addresses that are refused. Nothing here changes what happens to a packet,
// and no program adds a key: the daemon does.
#include "kernel.h"

// The network namespace whose connections count, for programs that see those of all.
volatile const __u32 own_netns = 0;

// An address of IPv4 has its bytes first and zeros behind. A NodePort has no address of
// its own: all zeros.
struct endpoint_key {
	__u8 frontend_address[16];
	__u8 endpoint_address[16];
	__u16 frontend_port;
	__u16 endpoint_port;
	__u8 family; // 4 or 6
	__u8 protocol;
	__u8 unused[2]; // zeros
};

struct endpoint_value {
	__u64 connections;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 20);
	__type(key, struct endpoint_key);
	__type(value, struct endpoint_value);
} endpoint_hits SEC(".maps");

struct reject_key {
	__u16 port;
	__u8 family; // 4 or 6
	__u8 protocol;
};

struct reject_value {
	__u64 packets;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 16);
	__type(key, struct reject_key);
	__type(value, struct reject_value);
} localhost_rejects SEC(".maps");

static __always_inline void copy_address(__u8 *to, const union nf_inet_addr *from, __u16 l3num)
{
	__u32 *words = (__u32 *)to;

	words[0] = from->all[0];
	if (l3num == AF_INET6) {
		words[1] = from->all[1];
		words[2] = from->all[2];
		words[3] = from->all[3];
	}
}

static __always_inline __u8 version(__u16 l3num)
{
	return l3num == AF_INET6 ? 6 : 4;
}

// A connection whose entry is confirmed was counted. The counters are each CPU's own, but
// a packet that this host sends can be interrupted by one that it receives.
static __always_inline void count_hit(const struct nf_conn *ct)
{
	if ((ct->status & (IPS_DST_NAT | IPS_CONFIRMED)) != IPS_DST_NAT)
		return;

	const struct nf_conntrack_tuple *sent = &ct->tuplehash[0].tuple;
	const struct nf_conntrack_tuple *answer = &ct->tuplehash[1].tuple;
	__u16 l3num = sent->src.l3num;
	struct endpoint_key key __attribute__((aligned(8))) = {};

	key.family = version(l3num);
	key.protocol = sent->dst.protonum;
	key.frontend_port = ntohs(sent->dst.u.all);
	key.endpoint_port = ntohs(answer->src.u.all);
	copy_address(key.frontend_address, &sent->dst.u3, l3num);
	copy_address(key.endpoint_address, &answer->src.u3, l3num);

	struct endpoint_value *value = bpf_map_lookup_elem(&endpoint_hits, &key);

	if (!value) {
		__builtin_memset(key.frontend_address, 0, sizeof(key.frontend_address));
		value = bpf_map_lookup_elem(&endpoint_hits, &key);
	}
	if (value)
		__sync_fetch_and_add(&value->connections, 1);
}

// destination is where the first packet of a connection was sent.
struct destination {
	__u32 address[4];
	__u16 port; // as on the wire
	__u16 l3num;
	__u8 protocol;
};

static __always_inline int is_loopback(const struct destination *to)
{
	const __u32 *words = to->address;

	if (to->l3num != AF_INET6)
		return (ntohl(words[0]) >> 24) == 127;
	return !(words[0] | words[1] | words[2]) && ntohl(words[3]) == 1;
}

static __always_inline void count_reject(const struct destination *to)
{
	if (!is_loopback(to))
		return;

	struct reject_key key = {
		.port = ntohs(to->port),
		.family = version(to->l3num),
		.protocol = to->protocol,
	};
	struct reject_value *value = bpf_map_lookup_elem(&localhost_rejects, &key);

	if (value)
		__sync_fetch_and_add(&value->packets, 1);
}

// The entry of a packet that is the first of its connection, or 0.
static __always_inline const struct nf_conn *new_connection(const struct bpf_nf_ctx *ctx)
{
	unsigned long nfct = ctx->skb->_nfct;

	if ((nfct & NFCT_INFOMASK) != IP_CT_NEW)
		return 0;
	return bpf_rdonly_cast((void *)(nfct & ~NFCT_INFOMASK), kernel_type(struct nf_conn));
}

// Kernel 6.4 and later: behind everything else that postrouting and input do, in front of
// the confirmation.
SEC("netfilter")
int count_hits(struct bpf_nf_ctx *ctx)
{
	const struct nf_conn *ct = new_connection(ctx);

	if (ct)
		count_hit(ct);
	return NF_ACCEPT;
}

// Kernel 6.4 and later: in front of NAT in output, where the refusal is.
SEC("netfilter")
int count_rejects(struct bpf_nf_ctx *ctx)
{
	const struct nf_conn *ct = new_connection(ctx);

	if (!ct)
		return NF_ACCEPT;

	const struct nf_conntrack_tuple *sent = &ct->tuplehash[0].tuple;
	struct destination to = {
		.address = { sent->dst.u3.all[0], sent->dst.u3.all[1], sent->dst.u3.all[2], sent->dst.u3.all[3] },
		.port = sent->dst.u.all,
		.l3num = sent->src.l3num,
		.protocol = sent->dst.protonum,
	};

	count_reject(&to);
	return NF_ACCEPT;
}

// Before 6.4: once for each connection whose destination is translated.
SEC("fexit/nf_nat_setup_info")
int count_translations(__u64 *ctx)
{
	const struct nf_conn *ct = (const struct nf_conn *)ctx[0];
	__u32 manip = ctx[2];
	__u32 verdict = ctx[3];

	if (manip == NF_NAT_MANIP_DST && verdict == NF_ACCEPT && ct->ct_net.net->ns.inum == own_netns)
		count_hit(ct);
	return 0;
}

// Reads through a pointer that the verifier does not know the type of.
#define read_field(to, from) bpf_probe_read_kernel(&(to), sizeof(to), __builtin_preserve_access_index(&(from)))

static __always_inline void count_refusal(const struct sk_buff *skb)
{
	const struct nf_conn *ct = (const struct nf_conn *)(skb->_nfct & ~NFCT_INFOMASK);
	struct destination to = {};
	struct net *net = 0;
	__u32 netns = 0;

	if (!ct || (skb->_nfct & NFCT_INFOMASK) != IP_CT_NEW)
		return;
	read_field(net, ct->ct_net.net);
	read_field(netns, net->ns.inum);
	if (netns != own_netns)
		return;
	read_field(to.address, ct->tuplehash[0].tuple.dst.u3.all);
	read_field(to.port, ct->tuplehash[0].tuple.dst.u.all);
	read_field(to.l3num, ct->tuplehash[0].tuple.src.l3num);
	read_field(to.protocol, ct->tuplehash[0].tuple.dst.protonum);
	count_reject(&to);
}

// Before 6.4: void nf_send_unreach(struct sk_buff *, int code, int hook)
SEC("fexit/nf_send_unreach")
int count_refusals_ip(__u64 *ctx)
{
	count_refusal((const struct sk_buff *)ctx[0]);
	return 0;
}

// Before 6.4: void nf_send_unreach6(struct net *, struct sk_buff *, unsigned char code, unsigned int hook)
SEC("fexit/nf_send_unreach6")
int count_refusals_ip6(__u64 *ctx)
{
	count_refusal((const struct sk_buff *)ctx[1]);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
