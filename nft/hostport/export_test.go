package hostport

// ServiceNames gives what is said here again of the table of Services.
func ServiceNames() []string { return []string{servicesTable, serviceIPs, serviceNodePorts} }

// At gives ports of another boot.
func (p *Ports) At(boot string) *Ports { return &Ports{ledger: ledger{p.ledger.dir, boot}} }
