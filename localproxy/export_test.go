package localproxy

// SmallPipes makes a proxy carry little at a time.
func (p *Proxy) SmallPipes() { p.pipes.size = 4096 }
