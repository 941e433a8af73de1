// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//
// What the programs need of the kernel: helpers by their number, and of its structures
// the fields that are read. Where a field really is, the loader finds out from the BTF of
// the kernel that it loads into.
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;

#define SEC(name) __attribute__((section(name), used))
#define __always_inline inline __attribute__((always_inline))
#define __ksym __attribute__((section(".ksyms")))

// How maps are described to the loader.
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

// The ID that the kernel's BTF has for a type.
#define kernel_type(type) __builtin_btf_type_id(*(type *)0, 1)

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define ntohs(x) __builtin_bswap16(x)
#define ntohl(x) __builtin_bswap32(x)
#else
#define ntohs(x) (x)
#define ntohl(x) (x)
#endif

enum {
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_F_NO_PREALLOC = 1,

	AF_INET = 2,
	AF_INET6 = 10,

	NF_ACCEPT = 1,
	NF_NAT_MANIP_DST = 1, // enum nf_nat_manip_type

	IP_CT_NEW = 2,		 // enum ip_conntrack_info
	IPS_CONFIRMED = 1 << 3,	 // enum ip_conntrack_status
	IPS_DST_NAT = 1 << 5,
};

#define NFCT_INFOMASK 7UL // the bits of sk_buff._nfct that are no pointer

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_probe_read_kernel)(void *to, __u32 size, const void *from) = (void *)113;

// Since 6.2; 6.4 has it for programs of type netfilter.
extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

union nf_inet_addr {
	__u32 all[4];
};

union nf_conntrack_man_proto {
	__u16 all;
};

struct nf_conntrack_man {
	union nf_inet_addr u3;
	union nf_conntrack_man_proto u;
	__u16 l3num;
};

struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
	struct {
		union nf_inet_addr u3;
		union {
			__u16 all;
		} u;
		__u8 protonum;
	} dst;
};

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
};

struct ns_common {
	__u32 inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct nf_conn {
	struct nf_conntrack_tuple_hash tuplehash[2];
	unsigned long status;
	possible_net_t ct_net;
};

struct sk_buff {
	unsigned long _nfct;
};

struct bpf_nf_ctx {
	struct sk_buff *skb;
};

#pragma clang attribute pop
