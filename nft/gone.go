package nft

// Gone gives the frontends that loads found in the kernel and deleted, since it was asked
// last: they were somebody's before this process began, or before a write of which nobody
// knows whether it was done.
func (p *Program) Gone() []Frontend {
	list := p.gone
	p.gone = nil
	return list
}

// noteGone takes note of the frontends that a load is about to delete. A load that fails
// may have deleted some, and the next one does not find them.
func (p *Program) noteGone(have, want State) {
	for _, m := range []RouteMap{ServiceIPs, ServiceNodePorts} {
		for f := range have.Routes[m] {
			if _, stays := want.Routes[m][f]; !stays {
				p.gone = append(p.gone, f)
			}
		}
	}
}
